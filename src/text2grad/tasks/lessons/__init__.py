"""Ready lessons: texts of comments and questions, and the programs that mark and measure."""
