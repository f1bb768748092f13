"""What is wrong with the messages of an extract, at any size: one way through its row groups for two engines.

Rows of a topic are in the order of its log, so what repeats or goes back is never above the highest id before it. Each
row group is summed up by itself; sums are few, and give each row group the state before it
(`row_groups.ProducerState`). Only where something does not rise are rows looked at again, and only their ids are looked
for in other row groups.
"""
