"""Examples that come with the package: a job with its data, and made raw files for the chapters of the Book."""
