"""Demand: scenario files, and the requests that follow from their streams and a seed."""
