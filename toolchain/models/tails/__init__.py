"""What follows an operator whose number of results depends on the data: rewritten for the largest number of them."""
