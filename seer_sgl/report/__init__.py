"""Records a rollout, reports it as JSON and draws it."""
