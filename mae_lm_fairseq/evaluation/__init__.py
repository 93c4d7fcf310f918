"""What a fine-tuned model is worth: tasks, metrics, statistics over seeds."""
