"""What an audit leaves behind: tables, summary, guards, plan and report."""
