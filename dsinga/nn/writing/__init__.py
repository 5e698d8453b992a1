"""From a model to a job: symbols of features and the layers of a job."""
