"""The Slurm that other tests use."""

from tests.cluster.slurm import Slurm


def test_jobs_run_on_two_nodes_and_see_the_gpus_that_they_asked_for(slurm: Slurm):
    tell = "echo $SLURM_JOB_NODELIST $CUDA_VISIBLE_DEVICES"
    both = slurm.submit("--nodes=2", "--gpus-per-node=2", script=tell)
    one = slurm.submit("--gpus-per-node=1", script=tell)
    slurm.emptied()
    assert (slurm.folder / f"{both}.out").read_text() == "n[1-2] 0,1\n"
    assert (slurm.folder / f"{one}.out").read_text() in ("n1 0\n", "n2 0\n")
