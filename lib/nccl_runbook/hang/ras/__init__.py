"""What the answers of NCCL's RAS show about a hung job."""
