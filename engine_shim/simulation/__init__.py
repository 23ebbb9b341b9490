"""Virtual time: a scenario played on a modelled device, and the world stream that an agent reads of it."""
