"""A run's rollouts → the noise in its advantages, what its updates did, and single cases (`analyse`)."""
