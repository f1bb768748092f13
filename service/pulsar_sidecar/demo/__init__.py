"""The main job told as a story on a real cluster, with measured numbers."""
