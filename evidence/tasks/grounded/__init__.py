"""The task of grounded answers: answer or summarize from a passage; the critic marks what the passage does not say."""
