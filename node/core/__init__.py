"""What all rooms share: types, errors, frames, warnings, units, pools of threads. Standard library only, no I/O."""
