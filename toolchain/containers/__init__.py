"""The images with the cross compilers: builds, checks and archives them, and runs commands in them."""
