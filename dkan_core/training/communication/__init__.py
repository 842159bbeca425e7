"""How the processes of a run talk to each other."""
