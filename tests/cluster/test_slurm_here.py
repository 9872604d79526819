"""The Slurm that other tests use."""

from tests.cluster.slurm import NODES, Slurm


def test_jobs_run_on_two_nodes_and_see_the_gpus_that_they_asked_for(slurm: Slurm) -> None:
    both = slurm.submit(
        "--nodes=2", "--gpus-per-node=2", script="srun sh -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'"
    )
    one = slurm.submit("--gpus-per-node=1", script="echo $CUDA_VISIBLE_DEVICES")
    for job in (both, one):
        slurm.until(lambda job=job: slurm.state(job) == "COMPLETED", f"job {job}")
    assert sorted((slurm.folder / f"{both}.out").read_text().splitlines()) == [f"{node} 0,1" for node in NODES]
    assert (slurm.folder / f"{one}.out").read_text().split() in (["0"], ["1"])
