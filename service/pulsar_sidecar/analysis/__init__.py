"""What every analysis over tables shares: their directories' documents, their schemas, and pages of what was found."""
