"""What is wrong with an index, and changes to what a cursor names: planned, approved by a hash, carried out."""
