"""The node itself: its parts, its life, what it says of itself, and what it looks after."""
