-- Incidents as they are now, and what was said of them when. Bodies are the JSON of model.Incident; times unix seconds.
CREATE TABLE IF NOT EXISTS incidents (
    id          TEXT PRIMARY KEY,
    rule        TEXT NOT NULL,
    severity    TEXT NOT NULL,
    status      TEXT NOT NULL,           -- open | resolved
    onset_at    REAL NOT NULL,
    detected_at REAL NOT NULL,
    resolved_at REAL,
    body        TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS incidents_by_onset ON incidents (onset_at);

CREATE TABLE IF NOT EXISTS transitions (
    incident TEXT NOT NULL REFERENCES incidents (id) ON DELETE CASCADE,
    kind     TEXT NOT NULL,              -- opened | worsened | eased | resolved | reminder
    at       REAL NOT NULL,
    body     TEXT NOT NULL,              -- the incident as it was told
    PRIMARY KEY (incident, kind, at)     -- a restart that says it again says nothing new
) STRICT;

-- Which sink has taken which transition: what a restart still owes.
CREATE TABLE IF NOT EXISTS deliveries (
    sink     TEXT NOT NULL,
    incident TEXT NOT NULL,
    kind     TEXT NOT NULL,
    at       REAL NOT NULL,
    PRIMARY KEY (sink, incident, kind, at),
    FOREIGN KEY (incident, kind, at) REFERENCES transitions (incident, kind, at) ON DELETE CASCADE
) STRICT;
