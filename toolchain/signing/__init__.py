"""Signed releases: what a signer says of a bundle, as OpenSSH signs it, and whether somebody trusted has said it."""
