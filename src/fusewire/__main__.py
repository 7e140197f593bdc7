"""``python -m fusewire``: the command."""

from fusewire.cli import main

if __name__ == "__main__":
    main(prog_name="fusewire")
