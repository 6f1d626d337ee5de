"""Labs that other software manages: acquires their devices for a command."""
