"""`node --check`: proves and measures on this machine what tests elsewhere could not. Nothing else imports it.

The command itself does not use MLX: each part that does runs in a process of its own, so that a crash of the device ends
that part only.
"""
