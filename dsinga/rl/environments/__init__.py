"""Environments: registered ones and Gymnasium's, their spaces, loops that step them, and pictures."""
