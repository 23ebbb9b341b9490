"""Grafana dashboards as code: one module with `build()` per dashboard; `python -m dashboards` writes `json/`.

The JSON is committed, and `python -m dashboards --check` says whether it is current.
"""

import warnings

# The SDK prefers the schema of Grafana 12's new dashboards; the classic one is what every Grafana since 9 can import.
warnings.filterwarnings("ignore", message="Prefer using dashboardv2", category=DeprecationWarning)
