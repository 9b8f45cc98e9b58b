"""pipelog: a post-mortem and efficiency analyzer for DeepSpeed pipeline-parallel training."""
