"""The images that hold the cross compilers: how they are built, checked, archived, and run in."""
