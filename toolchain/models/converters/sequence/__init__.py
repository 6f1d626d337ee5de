"""What works along time: attention, recurrent layers and signals."""
