"""What is known about one caller, and the locks that policies have set."""
