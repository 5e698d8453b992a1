"""Sites: server groups that agree by the mean of their changes, as in local SGD and DiLoCo."""
