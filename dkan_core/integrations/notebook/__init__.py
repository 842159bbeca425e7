"""``main(train_loader, test_loader)``: training and scoring of rows that a notebook or a script holds."""
