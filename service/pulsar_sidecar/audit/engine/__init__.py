"""The comparison and the judgement: what exists, what is referenced, and what follows."""
