"""What reports come to: rows, sums and judgements for people. No torch, nothing drawn."""
