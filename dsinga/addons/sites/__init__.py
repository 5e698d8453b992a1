"""Sites: server groups that average their params now and then, as in local SGD and DiLoCo."""
