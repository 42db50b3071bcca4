"""Tests of the Python package, run with a Python that has the wheel installed. They train a tiny model on the CPU."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import numpy as np

import smelt

TINY = {
    "model": {"family": "llama", "width": 32, "layers": 2, "heads": 2, "kv_heads": 1, "ffn": 32},
    "data": {"train": "text", "length": 32},
    "batch": {"sequences": 4, "tokens": 256},
    "device": "cpu",
    "threads": 1,
    "tensorboard": False,
}


def tiny(**settings):
    return {**TINY, **settings}


class InFolder(unittest.TestCase):
    def setUp(self):
        self._before, self._folder = os.getcwd(), tempfile.TemporaryDirectory()
        os.chdir(self._folder.name)
        with open("text", "w") as file:
            file.write("the step of a model is on disk before it says so\n" * 600)

    def tearDown(self):
        os.chdir(self._before)
        self._folder.cleanup()


class Training(InFolder):
    def test_iterating_yields_every_step_once(self):
        training = smelt.train(**tiny(run="a", steps=12))
        steps = list(training)
        self.assertEqual([step.step for step in steps], list(range(1, 13)))
        self.assertTrue(all(step["loss"] > 0 for step in steps))
        self.assertFalse(training.running)
        self.assertEqual(training.run.state, "finished")

    def test_a_continued_run_yields_only_its_new_steps(self):
        smelt.train(**tiny(run="a", steps=5)).wait()
        self.assertEqual([step.step for step in smelt.train("a", steps=8, threads=1)], [6, 7, 8])
        self.assertEqual(smelt.Run("a").metrics["step"].tolist(), list(range(1, 9)))

    def test_records_do_not_depend_on_the_clock(self):
        smelt.train(**tiny(run="a", steps=5)).wait()
        with open("a/metrics.jsonl") as file:
            records = [json.loads(line) for line in file]
        with open("a/metrics.jsonl", "w") as file:  # as if the clock had gone back since
            file.writelines(json.dumps({**record, "time": record["time"] + 1e6}) + "\n" for record in records)
        self.assertEqual([step.step for step in smelt.train("a", steps=8, threads=1)], [6, 7, 8])
        self.assertEqual([step.step for step in smelt.train("a", fork="b", steps=10, threads=1)], [9, 10])
        self.assertEqual([step.step for step in smelt.train("a@5", fork="c", steps=7, threads=1)], [6, 7])

    def test_restarted_ranks_repeat_only_steps_after_the_checkpoint(self):
        training = smelt.train(ranks=2, **tiny(run="a", steps=100000, checkpoint={"every": 5}, metrics={"system": 0}))
        starts, steps = [], []  # a list of steps for each start
        for record in training.records():
            if record.kind == "start":
                starts.append(record.step)
                steps.append([])
            elif record.kind == "step":
                steps[-1].append(record.step)
                if len(starts) == 1 and record.step == 12:
                    with open(f"/proc/{training.pid}/task/{training.pid}/children") as file:
                        os.kill(int(file.read().split()[0]), signal.SIGKILL)
                if len(starts) == 2:
                    training.stop()
        self.assertEqual([len(starts), starts[0], starts[1] % 5], [2, 0, 0])
        for first, of_start in zip(starts, steps):
            self.assertEqual(of_start, list(range(first + 1, first + 1 + len(of_start))))
        self.assertGreaterEqual(len(steps[0]), 12)
        self.assertTrue(steps[1])

    def test_records_have_all_kinds(self):
        training = smelt.train(**tiny(run="a", steps=4, eval={"every": 2, "sample_tokens": 4}))
        kinds = {record.kind for record in training.records()}
        self.assertLessEqual({"start", "step", "evaluation", "sample", "checkpoint", "end"}, kinds)

    def test_an_error_has_the_message_and_the_code(self):
        with self.assertRaisesRegex(smelt.Error, "(?s)model.width.*") as caught:
            list(smelt.train(**tiny(run="a", steps=4, model={"width": -1})))
        self.assertEqual(caught.exception.code, 2)
        with self.assertRaisesRegex(ValueError, "run="):
            smelt.train(steps=1)
        with self.assertRaisesRegex(smelt.Error, "(?s)model.width.*rank 0"):
            smelt.train(ranks=2, **tiny(run="a", steps=4, model={"width": -1})).wait()

    def test_an_error_names_the_signal_that_killed_the_program(self):
        training = smelt.train(**tiny(run="a", steps=100000))
        with self.assertRaisesRegex(smelt.Error, "^signal 9 ended smelt$") as caught:
            for step in training:
                if step.step == 3:
                    os.kill(training.pid, signal.SIGKILL)
        self.assertEqual(caught.exception.code, -9)

    def test_a_training_that_is_stopped_as_it_starts_ends_quietly(self):
        for ranks in (None, 2):
            with smelt.train(ranks=ranks, **tiny(run="a", steps=100000)) as training:
                pass
            self.assertFalse(training.running)

    def test_stop_pauses_and_the_same_call_continues(self):
        settings = tiny(run="a", steps=100000)
        training = smelt.train(**settings)
        for step in training:
            if step.step == 3:
                training.stop()
            last = step.step
        self.assertEqual(training.run.state, "paused")
        self.assertEqual(training.run.checkpoints[0], last)
        with smelt.train(**settings) as again:
            self.assertEqual(next(iter(again)).step, last + 1)
        self.assertFalse(again.running)

    def test_a_signal_from_elsewhere_is_an_error(self):
        training = smelt.train(**tiny(run="a", steps=100000))
        with self.assertRaises(smelt.Paused) as caught:
            for step in training:
                if step.step == 1:
                    os.kill(training.pid, signal.SIGTERM)
        self.assertEqual(caught.exception.code, 8)

    def test_the_end_of_python_pauses_the_training(self):
        code = f"import smelt; steps = iter(smelt.train(**{tiny(run='a', steps=100000)!r})); print(next(steps).step)"
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
        self.assertEqual(smelt.Run("a").state, "paused")

    def test_the_end_of_python_pauses_a_training_that_no_name_refers_to(self):
        code = f"import smelt\nfor step in smelt.train(**{tiny(run='a', steps=100000)!r}):\n    if step.step >= 3: break\n"
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
        self.assertEqual(smelt.Run("a").state, "paused")

    def test_a_signal_that_ends_python_pauses_the_training(self):
        settings = tiny(run="a", steps=100000)
        numbers = signal.SIGTERM, signal.SIGHUP, signal.SIGINT
        for waits, number in [("t.wait()", number) for number in numbers] + [("list(t)", signal.SIGTERM)]:
            script = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # nohup ignores it
            script += f"import smelt; t = smelt.train(**{settings!r}); print(next(iter(t)).step, flush=True); {waits}"
            python = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            self.assertTrue(python.stdout.readline())
            python.send_signal(number)
            python.stdout.close()
            self.assertEqual(python.wait(), -number)
            self.assertEqual(smelt.Run("a").state, "paused")

    def test_an_interrupt_pauses_the_training(self):
        interrupt = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        with self.assertRaises(KeyboardInterrupt):
            with smelt.train(**tiny(run="a", steps=100000)) as training:
                for step in training:
                    if step.step == 2:
                        interrupt.start()
        self.assertFalse(training.running)
        self.assertEqual(smelt.Run("a").state, "paused")

    def test_ranks_are_launched(self):
        steps = list(smelt.train(ranks=2, **tiny(run="a", steps=3, layout={"zero": 1})))
        self.assertEqual([step.step for step in steps], [1, 2, 3])
        whole = smelt.Run("a").checkpoint()
        for name in whole:
            self.assertEqual(whole[name].shape, whole.shape(name))
        smelt.train(**tiny(run="b", steps=3)).wait()
        alone = smelt.Run("b").checkpoint()
        self.assertEqual(sorted(whole), sorted(alone))
        for name in whole:  # the same sums in another order
            np.testing.assert_allclose(whole[name], alone[name], rtol=0.05, atol=0.05)


class Runs(InFolder):
    def setUp(self):
        super().setUp()
        settings = tiny(run="a", steps=8, eval={"every": 4, "sample_tokens": 8}, checkpoint={"every": 2, "keep": 9})
        self.run_of_a = smelt.train(**settings).wait()

    def test_metrics_are_arrays(self):
        metrics = self.run_of_a.metrics
        self.assertEqual(metrics["step"].dtype, np.int64)
        self.assertEqual(metrics["loss"].shape, (8,))
        self.assertLess(metrics["loss"][-1], metrics["loss"][0])
        self.assertEqual(len(dict(metrics)["lr"]), 8)
        self.assertEqual(self.run_of_a.evaluations["step"].tolist(), [4, 8])
        self.assertEqual(self.run_of_a.machine["step"].tolist()[-1], 8)
        self.assertGreater(self.run_of_a.machine["machine_memory_bytes"][-1], 1e6)
        with self.assertRaises(KeyError):
            metrics["none"]

    def test_samples_are_texts(self):
        self.assertEqual([sample.step for sample in self.run_of_a.samples], [4, 8])
        self.assertIsInstance(self.run_of_a.samples[0].text, str)

    def test_checkpoints_are_views_of_the_file(self):
        self.assertEqual(self.run_of_a.checkpoints, [8, 6, 4, 2])
        checkpoint = self.run_of_a.checkpoint(4)
        self.assertEqual(checkpoint.step, 4)
        self.assertIn(self.run_of_a.checkpoint("best").step, (4, 8))
        for name, tensor in checkpoint.items():
            self.assertEqual(tensor.shape, checkpoint.shape(name))
            self.assertFalse(tensor.flags.owndata, name)
            self.assertTrue(np.isfinite(tensor).all(), name)
        name = next(name for name in checkpoint if len(checkpoint.shape(name)) == 2)
        before = checkpoint[name].copy()
        checkpoint[name][:] = 0  # of this process alone
        np.testing.assert_array_equal(self.run_of_a.checkpoint(4)[name], before)
        self.assertFalse(np.array_equal(before, self.run_of_a.checkpoint(8)[name]))
        with self.assertRaisesRegex(smelt.Error, "8, 6, 4, 2"):
            self.run_of_a.checkpoint(5)

    def test_checkpoints_have_the_weights_that_convert_writes(self):
        subprocess.run([smelt.program(), "convert", "a", "model", "dtype=fp32"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        written = read_safetensors("model/model.safetensors")
        checkpoint = self.run_of_a.checkpoint()
        compared = 0
        for tensor in checkpoint.values():
            compared += any(tensor.shape == other.shape and np.array_equal(tensor, other) for other in written.values())
        self.assertGreaterEqual(compared, len(written))

    def test_bfloat16_is_converted(self):
        smelt.train(**tiny(run="b", steps=2, precision="pure_bf16")).wait()
        checkpoint = smelt.Run("b").checkpoint()
        name = next(name for name in checkpoint if checkpoint.dtype(name) == "BF16")
        self.assertEqual(checkpoint[name].dtype, np.float32)
        self.assertTrue(np.isfinite(checkpoint[name]).all())
        self.assertLess(abs(checkpoint[name]).max(), 100)

    def test_torch_has_the_same_numbers(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        checkpoint = self.run_of_a.checkpoint()
        for name in checkpoint:
            np.testing.assert_array_equal(checkpoint.torch(name).float().numpy(), checkpoint[name])

    def test_generation(self):
        one = self.run_of_a.generate("the step", tokens=5, device="cpu", temperature=0)
        self.assertEqual(str(one), one["completion"])
        many = smelt.generate("a", ["the step", {"prompt": "a model", "id": 7}], tokens=5, device="cpu", temperature=0)
        self.assertEqual([str(many[0]), many[1]["id"]], [str(one), 7])
        self.assertEqual(len(smelt.generate("a", ["x"], samples=3, tokens=2, device="cpu")), 3)
        with self.assertRaisesRegex(ValueError, "list"):
            smelt.generate("a", "x", samples=3)
        with self.assertRaisesRegex(smelt.Error, "none"):
            smelt.generate("none", "x")

    def test_lists_reach_settings_that_take_them(self):
        settings = {"tokens": 40, "device": "cpu", "temperature": 0}
        whole = str(self.run_of_a.generate("the step", **settings))
        self.assertGreater(len(whole), 2)
        end = whole[len(whole) // 2]
        for stop in ([end, "zz"], ("zz", end), end):
            self.assertEqual(str(self.run_of_a.generate("the step", stop=stop, **settings)), whole[: whole.index(end)])
        biased = self.run_of_a.generate("the step", logit_bias={ord("q"): 100}, **{**settings, "tokens": 3})
        self.assertEqual(str(biased), "qqq")
        with self.assertRaisesRegex(TypeError, "tokens=.*list.*stop, logit_bias"):
            self.run_of_a.generate("x", tokens=[1, 2])
        with self.assertRaisesRegex(TypeError, "data.train=.*list.*lora.targets"):
            smelt.train(run="b", data={"train": ["text", "text"]})
        lora = {"rank": 2, "targets": ["q_proj", "v_proj"]}
        adapted = smelt.train(init="a", run="b", steps=1, data=TINY["data"], batch=TINY["batch"], device="cpu", threads=1, lora=lora).wait()
        self.assertFalse([name for name in adapted.checkpoint() if "lora" in name and not ("q_proj" in name or "v_proj" in name)])

    def test_settings_that_cannot_be_honored_are_refused(self):
        for refused in ({"out": "x"}, {"seed": b"1"}, {"seed": {1}}):
            with self.assertRaisesRegex(TypeError, next(iter(refused))):
                smelt.generate("a", "x", **refused)
        for refused in ({"documents": "line"}, {"field": "x"}):
            with self.assertRaisesRegex(TypeError, next(iter(refused))):
                smelt.tokenize("a", "x", **refused)
        with self.assertRaisesRegex(TypeError, "path"):
            smelt.tokenize(b"a", "x")

    def test_folders_may_have_names_like_options(self):
        for name in ("-r", "--run", "a=b"):
            os.rename(self.run_of_a.folder, name)
            self.run_of_a = run = smelt.Run(name)
            self.assertEqual(run.state, "finished")
            self.assertTrue(os.path.getsize(run.report()) > 1000)
            self.assertEqual(smelt.tokenize(name, "ab").tolist(), [97, 98])
            smelt.generate(name, "x", tokens=2, device="cpu")
            if "=" in name:  # smelt train takes no such folder, and says so
                continue
            at = run.checkpoints[0]
            self.assertEqual([step.step for step in smelt.train(name, steps=at + 2, threads=1)], [at + 1, at + 2])

    def test_a_run_stays_the_same_after_a_change_of_the_folder(self):
        newest = self.run_of_a.checkpoint()
        os.chdir("/")
        self.assertEqual(self.run_of_a.metrics["step"].tolist(), list(range(1, 9)))
        self.assertEqual(self.run_of_a.state, "finished")
        for checkpoint in (newest, self.run_of_a.checkpoint("4")):
            self.assertTrue(np.isfinite(next(iter(checkpoint.values()))).all())
        with self.assertRaisesRegex(ValueError, "step.*best"):
            self.run_of_a.checkpoint("newest")

    def test_a_missing_program_is_an_error(self):
        before = os.environ.get("SMELT")
        os.environ["SMELT"] = "none/smelt"
        try:
            for call in (smelt.version, lambda: smelt.train(**tiny(run="b"))):
                with self.assertRaisesRegex(smelt.Error, "SMELT=none/smelt"):
                    call()
        finally:
            del os.environ["SMELT"]
            if before is not None:
                os.environ["SMELT"] = before

    def test_tokens(self):
        np.testing.assert_array_equal(self.run_of_a.tokenize("a step\n"), list(b"a step\n"))
        texts = ["", "two\nlines", "\u00e9"]
        self.assertEqual([ids.tolist() for ids in smelt.tokenize("a", texts)], [list(text.encode()) for text in texts])

    def test_a_page_is_written(self):
        self.assertTrue(os.path.getsize(self.run_of_a.report()) > 1000)

    def test_a_folder_without_a_run(self):
        with self.assertRaisesRegex(smelt.Error, "nothing"):
            list(smelt.Run("nothing").records())


def read_safetensors(path):
    """All tensors of a file of float32."""
    with open(path, "rb") as file:
        data = file.read()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    at = lambda one: data[8 + size + one["data_offsets"][0] : 8 + size + one["data_offsets"][1]]
    return {name: np.frombuffer(at(one), np.float32).reshape(one["shape"]) for name, one in header.items()}


if __name__ == "__main__":
    unittest.main()
