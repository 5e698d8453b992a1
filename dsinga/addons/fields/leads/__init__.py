"""Training on several leads: copies of a net, each fed with the predictions of earlier leads."""
