"""The commands `agentkit train` and `agentkit bench speculation`: heads trained on a model's own texts, and which proposer pays."""
