"""MPI: what moves tokens, arrays and numbers between the processes of `mpirun`. All of mpi4py is here."""
