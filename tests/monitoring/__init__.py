"""The dashboards, at a real Prometheus that scrapes real sidecars during the demo's acts.

``python -m tests.monitoring`` (`make monitoring`) starts a cluster, two sidecars and Prometheus, runs the acts and then
every query of every panel, and fails where a panel has no data without a reason. The pictures in docs/monitoring.md are
drawn from these responses.
"""
