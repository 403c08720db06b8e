"""How engines come up: started here, or joined."""
