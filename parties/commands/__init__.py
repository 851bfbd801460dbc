"""The subcommands, one file each. They are imported when they are asked for, so that ``parties --version`` stays quick."""
