"""What the agent answers over HTTP and gRPC: its pages, its API, and the exports of spans that it takes in."""
