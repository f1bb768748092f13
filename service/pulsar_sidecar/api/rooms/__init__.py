"""The routes of each room, with the JSON that goes in and out."""
