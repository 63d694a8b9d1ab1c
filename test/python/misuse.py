"""What `mypy --strict` must refuse: each line ends with the error that it is."""
import sheaf

plan = sheaf.compile("model.onnx", ranks="four")  # arg-type
sheaf.train(plan, {"x": "x.npy"}, callbacks=[3])  # list-item
sheaf.load_into(plan, "w.safetensors")  # arg-type
count: int = plan.summary()  # assignment
plan.simulate()  # call-arg
