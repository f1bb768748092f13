"""Findings among the messages of an extract of any size: one pass over its row groups.

Rows of a topic are in the order of its log, so a repeated or falling id is never above the highest id before it. Each
row group is summarised separately; the summaries are few, and give each row group the state before it
(`row_groups.ProducerState`). Only where ids do not rise are rows read again, and only their ids are searched in other
row groups.
"""
