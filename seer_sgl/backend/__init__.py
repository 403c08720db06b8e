"""`Backend`: a fleet and its driver as one object, whose engines and weights change."""
