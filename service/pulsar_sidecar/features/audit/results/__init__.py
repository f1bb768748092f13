"""Results of an audit: tables, summary, guards, plan and report."""
